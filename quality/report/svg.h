/* A small SVG writer (private to quality/). Coordinates are pixels; colours are "#rrggbb". */
#ifndef QUALITY_REPORT_SVG_H
#define QUALITY_REPORT_SVG_H

#include "base/base.h"

typedef enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor;

void svg_begin(strbuf *out, double width, double height);
void svg_end(strbuf *out);
/* Writes the whole drawing to a file, which it replaces. */
status svg_write(const char *path, const strbuf *svg, error *err);
void svg_rect(strbuf *out, double x, double y, double width, double height, const char *fill);
void svg_line(strbuf *out, double x1, double y1, double x2, double y2, const char *colour,
              double width, const char *dash);
void svg_circle(strbuf *out, double x, double y, double radius, const char *fill);
/* `angle` rotates the text by degrees around its own place. */
void svg_text(strbuf *out, double x, double y, svg_anchor anchor, double size, double angle,
              const char *colour, const char *text);
void svg_polyline(strbuf *out, const double *xy, size_t n_points, const char *colour,
                  const char *dash);

/* Colour of a value in [0, 1] on a scale from dark to light; grey for NaN. */
void svg_scale(double value, char out[8]);
/* The i-th of a set of colours that are easy to tell apart, with a dash pattern when colours
 * repeat. */
const char *svg_colour(size_t i);
const char *svg_dash(size_t i);

#endif
