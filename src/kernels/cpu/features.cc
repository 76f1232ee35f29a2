#include "kernels/cpu/features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace invar::cpu {

namespace {

// The kernel grants tiles (state component 18, XTILEDATA) to processes that ask:
// Documentation/arch/x86/xstate.rst.
constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr int kTileData = 18;

bool tiles_are_granted() {
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// State components that the operating system saves.
uint64_t enabled_states() {
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

}  // namespace

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kAvx512Bf16 = 1u << 5;  // CPUID leaf 7, subleaf 1, EAX
  return has_avx512_vnni() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvx512Bf16);
}

bool has_amx() {
  constexpr uint32_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // CPUID leaf 7, EDX
  constexpr uint64_t kTileStates = 3u << 17;                    // XTILECFG and XTILEDATA
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & kAmxBf16) || !(d & kAmxTile)) return false;
  return (enabled_states() & kTileStates) == kTileStates && tiles_are_granted();
}

bool has_avx512_vnni() {
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

bool has_avxvnni() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kAvxVnni = 1u << 4;  // CPUID leaf 7, subleaf 1, EAX
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvxVnni);
}

bool has_amx_int8() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kAmxInt8 = 1u << 25;  // CPUID leaf 7, EDX
  return has_amx() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmxInt8);
}

}  // namespace invar::cpu
