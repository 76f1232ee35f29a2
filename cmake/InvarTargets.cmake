# invar_library(NAME SOURCES ... DEPS ...): one static library per folder of src, named invar_NAME.
function(invar_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(invar_${name} STATIC ${ARG_SOURCES})
  target_include_directories(invar_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(invar_${name} PUBLIC invar_options ${ARG_DEPS})
endfunction()

# What this folder installs from here on belongs to `target`. `cmake --install` of a build that has not made it leaves the
# component out and says so; a component that is asked for by name must be there.
function(invar_install_if_built target component)
  install(CODE "if(NOT CMAKE_INSTALL_COMPONENT AND NOT EXISTS \"$<TARGET_FILE:${target}>\")
    message(STATUS \"Leaving out the component ${component}: its target ${target} is not built\")
    return()
  endif()" COMPONENT ${component})
endfunction()

# invar_test(NAME SOURCES ... DEPS ...): one GoogleTest program; every TEST in it is a ctest test.
# INVAR_SOURCE_DIR is where the repository lies, for tests that read its files. Names in INVAR_SANITIZED_TESTS have the label that
# scripts/test --asan and --tsan run.
function(invar_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  target_precompile_headers(${name} REUSE_FROM invar_test_headers)
  target_compile_definitions(${name} PRIVATE INVAR_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set(label "")
  if(name IN_LIST INVAR_SANITIZED_TESTS)
    set(label LABELS sanitized)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 240 ${label})
endfunction()
