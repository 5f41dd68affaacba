/* Numbers in words that come from outside: flags, requests, the environment, files.
 *
 * They are in decimal notation. strtod takes hexadecimal, "inf", "nan" and blanks in front, too,
 * and asks the locale for the decimal point, which a program that uses liboctavo may have set;
 * strtoul takes "-1" as its largest value. */
#ifndef BASE_NUMBER_H
#define BASE_NUMBER_H

#include <stdint.h>

/* Reads the number that `text` begins with: digits, with a point among, before or behind them, a
 * sign in front and an exponent behind. Returns its end. NULL: no number begins there, it is
 * hexadecimal, or a double cannot hold it; *out is as before. */
const char *number_read(const char *text, double *out);
/* Reads, as number_read does, a whole number in digits alone, which 64 bits can hold. */
const char *number_read_whole(const char *text, uint64_t *out);

#endif
