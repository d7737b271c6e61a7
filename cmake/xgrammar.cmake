# zipage_xgrammar: XGrammar, from PyPI's sdist. Its headers are for src/grammar alone, as "xgrammar/...".
include(pypi)
set(xgrammar_root xgrammar-0.2.8)
zipage_pypi(xgrammar
  NAME xgrammar VERSION 0.2.8 FILE xgrammar-0.2.8.tar.gz
  SHA256 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
  PATTERNS ${xgrammar_root}/LICENSE ${xgrammar_root}/NOTICE ${xgrammar_root}/include/* ${xgrammar_root}/cpp/*.cc
    ${xgrammar_root}/cpp/*.h ${xgrammar_root}/3rdparty/picojson/picojson.h ${xgrammar_root}/3rdparty/dlpack/include/*
    ${xgrammar_root}/3rdparty/dlpack/LICENSE)
set(xgrammar_root ${xgrammar}/${xgrammar_root})

if(ZIPAGE_FUZZ)  # no fuzz target links it, and it takes long to compile
  add_library(zipage_xgrammar INTERFACE)
  target_include_directories(zipage_xgrammar SYSTEM INTERFACE
    ${xgrammar_root}/include ${xgrammar_root}/3rdparty/dlpack/include)
  return()
endif()
file(GLOB xgrammar_sources ${xgrammar_root}/cpp/*.cc ${xgrammar_root}/cpp/support/*.cc ${xgrammar_root}/cpp/converter_ext/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/support/logging\\.cc$")

# Strings with a limit of their length may hold raw control characters in 0.2.8, which JSON forbids.
set(converter ${xgrammar_root}/cpp/json_schema_converter.cc)
set(patched ${CMAKE_BINARY_DIR}/xgrammar/json_schema_converter.cc)
file(READ ${converter} content)
string(REPLACE [[{'\r', '\r'}, {'\n', '\n'}}, true)]] [[{0, 0x1f}}, true)]] fixed "${content}")
if(fixed STREQUAL content)
  message(FATAL_ERROR "${converter} is not the file that cmake/xgrammar.cmake knows how to mend.")
endif()
file(CONFIGURE OUTPUT ${patched} CONTENT "${fixed}" @ONLY)
list(REMOVE_ITEM xgrammar_sources ${converter})
list(APPEND xgrammar_sources ${patched})

add_library(zipage_xgrammar STATIC ${xgrammar_sources})
target_include_directories(zipage_xgrammar SYSTEM PUBLIC ${xgrammar_root}/include ${xgrammar_root}/3rdparty/dlpack/include
  PRIVATE ${xgrammar_root}/3rdparty/picojson ${xgrammar_root}/cpp)
target_compile_definitions(zipage_xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0)
target_compile_options(zipage_xgrammar PRIVATE -w -g0 $<$<CONFIG:Release>:-O1> -include ${CMAKE_CURRENT_LIST_DIR}/xgrammar_logging.h)
# Parsers run once a grammar and take long to compile: what runs for each token or each vocabulary entry is optimized.
foreach(source IN LISTS xgrammar_sources)
  if(source MATCHES "/(earley_parser|grammar_matcher|grammar_compiler|compiled_grammar|fsm)\\.cc$")
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2>")
  endif()
endforeach()
zipage_together(zipage_xgrammar 4)
