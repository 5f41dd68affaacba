#include "tests/e2e/house.h"

int main(void) { return 0; }
