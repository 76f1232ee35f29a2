# Compiler settings that every target shares. Bits are the product, so no option here may
# license the compiler to change the value of a floating-point expression.
option(INVAR_TESTS "Build the tests" ON)
option(INVAR_CUDA "Build the CUDA back end when a CUDA compiler is found" ON)

# Builds of one tree, such as the demo's, a wheel's and a package's, compile each file once where there is a compiler cache. CI has one build.
find_program(INVAR_CCACHE ccache)
foreach(language C CXX)
  if(INVAR_CCACHE AND NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER AND NOT DEFINED ENV{CI})
    # Files that CMake writes have equal names in all builds but for the build's folder.
    set(CMAKE_${language}_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_BINARY_DIR} ${INVAR_CCACHE})
  endif()
endforeach()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# The baseline is x86-64-v3 (AVX2, FMA, F16C): the scalar definitions need a hardware fma, and with one
# baseline an inline function means the same in every file. Wider sets live in files of their own.
add_library(invar_options INTERFACE)
target_compile_options(invar_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -Werror -march=x86-64-v3 -ffp-contract=off -fno-fast-math>)
# g++ 12 reports overflows and overlaps that are none inside inlined std::string and fmt.
target_compile_options(invar_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow -Wno-maybe-uninitialized -Wno-array-bounds -Wno-restrict>)
# A fused multiply-add is a constant for g++, and no constant for clang 14 (numerics/curves.h).
target_compile_options(invar_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-invalid-constexpr>)
set(CMAKE_CXX_FLAGS_RELEASE "-O3")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")

set(INVAR_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")
if(INVAR_SANITIZE)
  target_compile_options(invar_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${INVAR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  # clang 14 cannot assemble coroutines with the check of function types that "undefined" has.
  if(INVAR_SANITIZE MATCHES undefined)
    target_compile_options(invar_options INTERFACE
      $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function>)
  endif()
  target_link_options(invar_options INTERFACE -fsanitize=${INVAR_SANITIZE})
endif()

find_package(Threads REQUIRED)
find_package(fmt 9.1 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED)
find_package(simdjson 3.0 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(CURL 7.88 REQUIRED)
find_package(SQLite3 3.40 REQUIRED)
find_package(tomlplusplus 3.3 REQUIRED)
find_package(ICU 72 REQUIRED COMPONENTS uc)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
if(INVAR_TESTS)
  find_package(GTest 1.12 REQUIRED)
  include(GoogleTest)
endif()

if(INVAR_CUDA)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know it
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
    # For a project that requires 3.25, that CMake deprecates CUDA::nvToolsExt, a library that CUDA 13 has not: an error.
    set(required_cmake ${CMAKE_MINIMUM_REQUIRED_VERSION})
    set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_MINIMUM_REQUIRED_VERSION ${required_cmake})
    set(INVAR_HAVE_CUDA ON)
    # The same arithmetic as on the host; kernels call the host's constexpr functions (numerics/math.h).
    target_compile_options(invar_options INTERFACE
      $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --ftz=true --prec-div=true --prec-sqrt=true
      --expt-relaxed-constexpr -Werror=all-warnings -Xcompiler=-march=x86-64-v3,-ffp-contract=off>)
  else()
    message(STATUS "No CUDA compiler: building the CPU back end only")
  endif()
endif()
