# The CUDA toolchain. sm_90a is Hopper with its own instructions; others are added by name, for example
# -DZIPAGE_CUDA_ARCHS="80;89;90a;100": the driver picks at run time.
set(ZIPAGE_CUDA_ARCHS "90a" CACHE STRING "GPU architectures to compile for, of 80;86;89;90a;100;120")
find_package(CUDAToolkit 12.5 REQUIRED)
if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
# The flags below name the architectures; CMake 3.25 does not know them all.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
# CMake 3.25 does not know that nvcc has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

add_library(zipage_cuda_flags INTERFACE)
foreach(arch IN LISTS ZIPAGE_CUDA_ARCHS)
  target_compile_options(zipage_cuda_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_${arch},code=sm_${arch}>)
endforeach()
# -g1 of the host compiler's flags means nothing to the device compiler; -lineinfo is its counterpart, for profilers.
target_compile_options(zipage_cuda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${ZIPAGE_WERROR}>>:-Werror=all-warnings>)
