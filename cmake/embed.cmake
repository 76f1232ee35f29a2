# cmake -DOUTPUT=page_files.cc "-DFILES=a;b" -P embed.cmake: the files as invar::server::page_files(). It leaves out
# of the page's scripts, styles and documents the spaces that lines begin with, and comments, which begin a line or stand
# behind two spaces. The page itself has its style within, since a browser paints nothing before it has the style.

# Sets `out` to what is embedded of a file, in hexadecimal digits, so that no letter of it means anything to CMake.
function(read_file file out)
  file(READ ${file} hex HEX)
  if(file MATCHES "[.](js|css|html)$")
    # 0a: the end of a line, 20: a space, 2f2f20: "// ".
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\1 " hex "0a${hex}")
    string(REGEX REPLACE "0a (20 )+" "0a " hex "${hex}")
    string(REGEX REPLACE "(0a |20 20 )2f 2f 20 ([1-9a-f][0-9a-f] |0[0-9b-f] )*" "" hex "${hex}")
    string(REGEX REPLACE "(0a )+" "0a " hex "${hex}")
    string(REGEX REPLACE "^0a " "" hex "${hex}")
    if(file MATCHES "[.]css$")  # nor the spaces beside { } : ; , nor a ; before }
      string(REGEX REPLACE "20 7b " "7b " hex "${hex}")
      string(REGEX REPLACE "(7b|7d|3a|3b|2c) 20 " "\\1 " hex "${hex}")
      string(REGEX REPLACE "20 7d " "7d " hex "${hex}")
      string(REGEX REPLACE "3b (0a )?7d " "7d " hex "${hex}")
    endif()
    string(REPLACE " " "" hex "${hex}")
  endif()
  set(${out} "${hex}" PARENT_SCOPE)
endfunction()

set(arrays "")
set(table "")
set(number 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  read_file(${file} hex)
  if(name STREQUAL "index.html")
    string(HEX "<link rel=\"stylesheet\" href=\"/page/style.css\">" link)
    string(HEX "<style>" begin)
    string(HEX "</style>" end)
    get_filename_component(folder ${file} DIRECTORY)
    read_file(${folder}/style.css style)
    string(FIND "${hex}" "${link}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "expected a link to /page/style.css in ${file}, found none")
    endif()
    string(REPLACE "${link}" "${begin}${style}${end}" hex "${hex}")
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
