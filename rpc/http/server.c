#include "rpc/http/http.h"
