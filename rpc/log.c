#include "rpc/service.h"
