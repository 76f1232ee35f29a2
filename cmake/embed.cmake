# cmake -DOUTPUT=page_files.cc "-DFILES=a;b" -P embed.cmake: the files as invar::server::page_files().
set(arrays "")
set(table "")
set(number 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
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
