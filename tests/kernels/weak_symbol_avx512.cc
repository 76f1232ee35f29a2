// What tools/check_symbols must find: a function that the linker may take for every file.
namespace {
volatile int source;
}
template <typename T>
__attribute__((noinline)) T shared(T x) {
  return x + source;
}
int use_shared() {
  return shared(1);
}
