/* Writes SVG. */
#include "quality/report/svg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Writes text, with characters escaped that XML would read as markup. XML has no control
 * characters and no bytes that are not UTF-8, which names of folders may have. */
static void put_text(strbuf *out, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        uint32_t c;
        unsigned n = utf8_decode((const uint8_t *)text, left, &c);
        if (c == '<') strbuf_puts(out, "&lt;");
        else if (c == '>') strbuf_puts(out, "&gt;");
        else if (c == '&') strbuf_puts(out, "&amp;");
        else if (c == UINT32_MAX) strbuf_puts(out, "\xef\xbf\xbd");
        else if (c >= ' ' && c != 0xfffe && c != 0xffff) strbuf_append(out, text, n);
        text += n;
        left -= n;
    }
}

void svg_begin(strbuf *out, double width, double height)
{
    strbuf_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                  "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\">\n",
                  width, height, width, height);
    svg_rect(out, 0, 0, width, height, "#ffffff");
}

void svg_end(strbuf *out) { strbuf_puts(out, "</svg>\n"); }

status svg_write(const char *path, const strbuf *svg, error *err)
{
    if (svg->failed) return error_set(err, STATUS_NO_MEMORY, "out of memory");
    FILE *file = fopen(path, "we");
    if (!file) return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    bool ok = fwrite(svg->data, 1, svg->size, file) == svg->size;
    ok &= fclose(file) == 0;
    return ok ? STATUS_IS_OK : error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
}

void svg_rect(strbuf *out, double x, double y, double width, double height, const char *fill)
{
    strbuf_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                  x, y, width, height, fill);
}

static void put_stroke(strbuf *out, const char *colour, double width, const char *dash)
{
    strbuf_printf(out, "stroke=\"%s\" stroke-width=\"%.1f\"", colour, width);
    if (dash) strbuf_printf(out, " stroke-dasharray=\"%s\"", dash);
}

void svg_line(strbuf *out, double x1, double y1, double x2, double y2, const char *colour,
              double width, const char *dash)
{
    strbuf_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" ", x1, y1, x2, y2);
    put_stroke(out, colour, width, dash);
    strbuf_puts(out, "/>\n");
}

void svg_circle(strbuf *out, double x, double y, double radius, const char *fill)
{
    strbuf_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", x, y, radius,
                  fill);
}

void svg_text(strbuf *out, double x, double y, svg_anchor anchor, double size, double angle,
              const char *colour, const char *text)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    strbuf_printf(out,
                  "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.0f\" text-anchor=\"%s\" "
                  "fill=\"%s\"",
                  x, y, size, anchors[anchor], colour);
    if (angle != 0) strbuf_printf(out, " transform=\"rotate(%.0f %.1f %.1f)\"", angle, x, y);
    strbuf_putc(out, '>');
    put_text(out, text);
    strbuf_puts(out, "</text>\n");
}

void svg_polyline(strbuf *out, const double *xy, size_t n_points, const char *colour,
                  const char *dash)
{
    strbuf_puts(out, "<polyline fill=\"none\" ");
    put_stroke(out, colour, 1.8, dash);
    strbuf_puts(out, " points=\"");
    for (size_t i = 0; i < n_points; i++)
        strbuf_printf(out, i ? " %.1f,%.1f" : "%.1f,%.1f", xy[2 * i], xy[2 * i + 1]);
    strbuf_puts(out, "\"/>\n");
}

/* Five stops from dark violet to light yellow, ordered by lightness, so that the scale reads in
 * grey, too. */
void svg_scale(double value, char out[8])
{
    static const double stops[5][3] = {
        {48, 18, 59}, {62, 73, 137}, {38, 130, 142}, {109, 205, 89}, {253, 231, 37}};
    if (isnan(value)) {
        memcpy(out, "#d9d9d9", 8);
        return;
    }
    double at = (value < 0 ? 0 : value > 1 ? 1 : value) * 4;
    int i = at >= 4 ? 3 : (int)at;
    unsigned c[3];
    for (int k = 0; k < 3; k++)
        c[k] = (unsigned)(stops[i][k] + (stops[i + 1][k] - stops[i][k]) * (at - i) + 0.5) & 255u;
    snprintf(out, 8, "#%02x%02x%02x", c[0], c[1], c[2]);
}

static const char *const colours[] = {"#4269d0", "#e8710a", "#2f8f4e", "#c5221f", "#8e44ad",
                                      "#795548", "#d6408e", "#607d8b", "#a08600", "#12a3b4"};
enum { N_COLOURS = sizeof colours / sizeof colours[0] };

const char *svg_colour(size_t i) { return colours[i % N_COLOURS]; }

const char *svg_dash(size_t i)
{
    static const char *const dashes[] = {NULL, "7 3", "2 3"};
    return dashes[i / N_COLOURS % 3];
}
