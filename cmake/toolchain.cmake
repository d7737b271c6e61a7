# Compiler cache, linker, warnings and sanitizers: used when there, never required.
find_program(ZIPAGE_CCACHE ccache)
if(ZIPAGE_CCACHE)
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${ZIPAGE_CCACHE})
  endforeach()
endif()
find_program(ZIPAGE_MOLD mold)
if(ZIPAGE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Seconds after which a test counts as hanging. A sanitizer slows a test down by ten times and more.
set(ZIPAGE_TEST_TIMEOUT 300)

# -Wno-restrict: gcc 12 sees overlaps in "text" + std::string() that are not there (gcc bug 105651).
add_library(zipage_warnings INTERFACE)
target_compile_options(zipage_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers -Wno-restrict>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${ZIPAGE_WERROR}>>:-Werror>)

if(ZIPAGE_SANITIZE)
  set(ZIPAGE_TEST_TIMEOUT 1800)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${ZIPAGE_SANITIZE}> $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${ZIPAGE_SANITIZE})
  if(ZIPAGE_SANITIZE MATCHES undefined)
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=undefined>)
  endif()
endif()
if(ZIPAGE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage in every layer, for tests/fuzz
endif()
if(ZIPAGE_DEBUG_CHECKS)
  add_compile_definitions(ZIPAGE_DEBUG_CHECKS)
endif()

# zipage_together(TARGET N): compiles files N at a time, since most of their time goes into the headers they share. Files
# with options of their own stay alone.
function(zipage_together target n)
  if(ZIPAGE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${n})
  endif()
endfunction()
