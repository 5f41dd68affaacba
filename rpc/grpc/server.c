#include "rpc/grpc/grpc.h"
