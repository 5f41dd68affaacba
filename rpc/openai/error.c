#include "rpc/openai/openai.h"
