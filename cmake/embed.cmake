# cmake -DOUTPUT=page_files.cc "-DFILES=a;b" -P embed.cmake: the files as invar::server::page_files(). It leaves out
# of the page's scripts, styles and documents the spaces that lines begin with, and comments, which begin a line or stand
# behind two spaces.
set(arrays "")
set(table "")
set(number 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
  if(name MATCHES "[.](js|css|html)$")
    # As hexadecimal digits, so that no letter of a file means anything to CMake. 0a: the end of a line, 20: a space, 2f2f20: "// ".
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\1 " hex "0a${hex}")
    string(REGEX REPLACE "0a (20 )+" "0a " hex "${hex}")
    string(REGEX REPLACE "(0a |20 20 )2f 2f 20 ([1-9a-f][0-9a-f] |0[0-9b-f] )*" "" hex "${hex}")
    string(REGEX REPLACE "(0a )+" "0a " hex "${hex}")
    string(REGEX REPLACE "^0a " "" hex "${hex}")
    if(name MATCHES "[.]css$")  # nor the spaces beside { } : ; ,
      string(REGEX REPLACE "20 7b " "7b " hex "${hex}")
      string(REGEX REPLACE "(7b|7d|3a|3b|2c) 20 " "\\1 " hex "${hex}")
      string(REGEX REPLACE "20 7d " "7d " hex "${hex}")
    endif()
    string(REPLACE " " "" hex "${hex}")
  endif()
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND table
    "    {\"${name}\", {reinterpret_cast<const char*>(kFile${number}), sizeof kFile${number} - 1}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/embed.cmake.
#include \"page.h\"

namespace {
${arrays}}  // namespace

std::span<const invar::server::PageFile> invar::server::page_files() {
  static const PageFile kFiles[] = {
${table}  };
  return kFiles;
}
")
