# Everything comes from Debian's packages or PyPI (pinned by hash, see cmake/pypi.cmake).
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
find_package(yaml-cpp REQUIRED)

# Debian ships fmt as a shared library only; compiled from its own header it links into a binary that travels.
add_library(zipage_fmt STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt_impl.cpp)
get_target_property(fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(zipage_fmt SYSTEM PUBLIC ${fmt_include})
add_library(zipage_log_deps INTERFACE)
get_target_property(spdlog_include spdlog::spdlog_header_only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(zipage_log_deps SYSTEM INTERFACE ${spdlog_include})

include(jinja)  # zipage_jinja: llama.cpp's Jinja engine, from PyPI's llama-cpp-python
include(xgrammar)  # zipage_xgrammar: grammars for structured output, from PyPI's xgrammar
