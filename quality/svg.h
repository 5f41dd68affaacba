/* A small SVG writer (private to quality/). Coordinates are pixels; colours are "#rrggbb". */
#ifndef QUALITY_SVG_H
#define QUALITY_SVG_H

#include "base/base.h"

typedef enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor;

void svg_begin(strbuf *out, double width, double height);
void svg_end(strbuf *out);
void svg_rect(strbuf *out, double x, double y, double width, double height, const char *fill);
void svg_line(strbuf *out, double x1, double y1, double x2, double y2, const char *colour,
              double width, const char *dash);
void svg_circle(strbuf *out, double x, double y, double radius, const char *fill);
/* `turn` in degrees around its own place. */
void svg_text(strbuf *out, double x, double y, svg_anchor anchor, double size, double turn,
              const char *colour, const char *text);
void svg_polyline(strbuf *out, const double *xy, size_t n_points, const char *colour,
                  const char *dash);

/* A scale from dark to light for values in [0, 1]; grey for NaN. */
void svg_scale(double value, char out[8]);
/* The i-th of colours that can be told apart, and a dash pattern when they repeat. */
const char *svg_colour(size_t i);
const char *svg_dash(size_t i);

#endif
