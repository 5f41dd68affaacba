/* How each matrix of a model is quantised (private to model/load/). */
#ifndef MODEL_LOAD_WEIGHTS_QUANT_H
#define MODEL_LOAD_WEIGHTS_QUANT_H

#include "model/load/weights.h"

/* How a role's matrix is quantised. The head keeps 8 bits, because its rounding goes straight into
 * logits and its weights are few. Routers stay as they are, because they choose experts. */
kern_quant weights_quant_of(const weights_options *o, tensor_role role);
/* Whether matrices may become block floats: the kernels prefer these, and weights are bf16 that
 * nothing quantises. */
bool weights_takes_blocks(const weights_options *o);
/* Makes m, which has parts already unless is_first, what it is with p: e4m3 floats where all parts
 * are kept as that, else quantised as the options say. */
void weights_join_quant(const weights_options *o, const tensor_part *p, bool is_first,
                        kern_matrix *m);
/* Gives the matrices of a layer's experts one shape: floats where those of all experts are. */
void weights_join_experts(const weights_options *o, ffn_weights *experts);

#endif
