#include <napi.h>
static Napi::Object Init(Napi::Env env, Napi::Object exports) { return exports; }
NODE_API_MODULE(kernels_test, Init)
