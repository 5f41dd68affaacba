/* The parts that all drawings share: their files, and the scale of their colours. */
#include "quality/report/report.h"
#include "quality/report/svg.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char ink[] = "#333333";

status plots_write_file(const char *folder, const char *kind, const char *title_of,
                        const variant *of, const strbuf *svg, error *err)
{
    char name[256], path[1024];
    int n = snprintf(name, sizeof name - 5, "%s-%s%s%.*s", kind, title_of, of ? "-" : "",
                     of ? (int)of->label_chars : 0, of ? of->method : "");
    if (n > (int)sizeof name - 6) n = (int)sizeof name - 6;
    for (int i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-._", name[i])) name[i] = '_';
    memcpy(name + n, ".svg", 5);
    RETURN_IF_ERROR(file_join(path, sizeof path, folder, name, err));
    return svg_write(path, svg, err);
}

void plots_put_scale(strbuf *svg, double x, double y, double height)
{
    enum { STEPS = 20 };
    for (int i = 0; i < STEPS; i++) {
        char colour[8];
        svg_scale((i + 0.5) / STEPS, colour);
        svg_rect(svg, x, y + height * (STEPS - 1 - i) / STEPS, 12, height / STEPS + 0.5, colour);
    }
    svg_text(svg, x + 16, y + 8, SVG_START, 11, 0, ink, "1");
    svg_text(svg, x + 16, y + height, SVG_START, 11, 0, ink, "0");
}
