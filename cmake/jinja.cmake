# zipage_jinja: llama.cpp's Jinja engine, of which PyPI's llama-cpp-python carries the source. Its headers are for
# src/text/chat_template.cpp alone, as "jinja/...".
include(pypi)
set(jinja_root llama_cpp_python-0.3.36/vendor/llama.cpp)
zipage_pypi(llama_cpp_python
  NAME llama-cpp-python VERSION 0.3.36 FILE llama_cpp_python-0.3.36.tar.gz
  SHA256 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
  PATTERNS ${jinja_root}/LICENSE ${jinja_root}/common/jinja/* ${jinja_root}/common/json.* ${jinja_root}/common/unicode.*)
set(jinja_root ${llama_cpp_python}/${jinja_root})

# Of ggml the JSON wrapper uses one macro.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/jinja/ggml.h CONTENT
"#pragma once
#include <cstdlib>
#define GGML_ASSERT(condition) ((condition) ? void() : std::abort())
" @ONLY)
add_library(zipage_jinja STATIC
  ${jinja_root}/common/jinja/lexer.cpp ${jinja_root}/common/jinja/parser.cpp ${jinja_root}/common/jinja/runtime.cpp
  ${jinja_root}/common/jinja/string.cpp ${jinja_root}/common/jinja/value.cpp ${jinja_root}/common/json.cpp
  ${jinja_root}/common/unicode.cpp)
target_include_directories(zipage_jinja PRIVATE ${CMAKE_BINARY_DIR}/jinja)
target_include_directories(zipage_jinja SYSTEM PUBLIC ${jinja_root}/common)
target_link_libraries(zipage_jinja PRIVATE nlohmann_json::nlohmann_json)
target_compile_options(zipage_jinja PRIVATE -w $<$<CONFIG:Release>:-O1>)
zipage_together(zipage_jinja 4)
set_source_files_properties(${jinja_root}/common/json.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
