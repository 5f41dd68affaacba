/* Runs a fuzz target once over each file of a folder: libFuzzer's corpus as a regression test. */
#include "base/base.h"
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    struct dirent **entries;
    int n = scandir(argv[1], &entries, NULL, alphasort), n_replayed = 0;
    if (n < 0) {
        perror(argv[1]);
        return 2;
    }
    bool ok = true;
    for (int i = 0; i < n; i++) {
        char path[4096], *data;
        size_t size;
        error err;
        if (entries[i]->d_name[0] != '.' && ok) {
            ok = status_ok(file_join(path, sizeof path, argv[1], entries[i]->d_name, &err)) &&
                 status_ok(file_read(path, (size_t)64 << 20, &data, &size, &err));
            if (ok) {
                printf("%s\n", path); /* the last path printed is the one that crashed */
                fflush(stdout);
                LLVMFuzzerTestOneInput((const uint8_t *)data, size);
                free(data);
                n_replayed++;
            } else {
                fprintf(stderr, "%s\n", err.text);
            }
        }
        free(entries[i]);
    }
    free(entries);
    printf("%d inputs replayed\n", n_replayed);
    return ok && n_replayed > 0 ? 0 : 1;
}
