# The CUDA toolkit, by its files alone: CMake's own CUDA language wants to run a test program of its choice.
#   MAR_NVCC                 the compiler
#   MAR_CUDA_LIBRARIES       what the backend links with: the static runtime and cuBLASLt
#   MAR_CURAND               cuRAND, for the test of the random numbers
#   mar_cuda_objects(OUT SOURCE...)  objects of .cu files, for OUT; beside each, in OBJECT.log, what ptxas says of its kernels
find_program(MAR_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT MAR_NVCC)
  message(FATAL_ERROR "MAR_CUDA: nvcc not found, expected in PATH, in $CUDA_PATH/bin or by -DMAR_NVCC=FILE; "
                      "scripts/cuda.sh fetches the toolkit")
endif()
get_filename_component(MAR_CUDA_ROOT ${MAR_NVCC} REALPATH)
get_filename_component(MAR_CUDA_ROOT ${MAR_CUDA_ROOT}/../.. ABSOLUTE)
foreach(part cudart_static:CUDART cublasLt:CUBLASLT curand:CURAND)
  string(REPLACE ":" ";" part ${part})
  list(GET part 0 name)
  list(GET part 1 variable)
  find_library(MAR_${variable} ${name} HINTS ${MAR_CUDA_ROOT} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib
               NO_DEFAULT_PATH)
  find_library(MAR_${variable} ${name})
  if(NOT MAR_${variable})
    message(FATAL_ERROR "MAR_CUDA: lib${name} not found, expected under ${MAR_CUDA_ROOT} or by -DMAR_${variable}=FILE")
  endif()
endforeach()
find_path(MAR_CUDA_INCLUDE cublasLt.h HINTS ${MAR_CUDA_ROOT} PATH_SUFFIXES include targets/x86_64-linux/include
          REQUIRED)
message(STATUS "CUDA compiler: ${MAR_NVCC}")

find_package(Threads REQUIRED)
set(MAR_CUDA_LIBRARIES ${MAR_CUDART} ${MAR_CUBLASLT} Threads::Threads ${CMAKE_DL_LIBS} rt stdc++)

# Machine code for Ampere, Ada, Hopper and Blackwell, and PTX for what comes between and later. $CUDAARCHS is CMake's
# variable for it. 100 and 120 need toolkit 12.8 or later. The kernels have two forms, without clusters and, from 90 on,
# with them. So 80 to 89 take the PTX of 80, made once. 100 and 120 take their own: from that of 90 ptxas makes code of
# more registers.
set(architectures "80;86;89;90a;100;120;90-virtual")
if(NOT "$ENV{CUDAARCHS}" STREQUAL "")
  set(architectures "$ENV{CUDAARCHS}")
endif()
set(MAR_CUDA_ARCHITECTURES "${architectures}" CACHE STRING
    "compute capabilities; N or N-real: machine code, N-virtual: PTX for later ones")
set(MAR_CUDA_FLAGS -std=c++17 -O3 -Xptxas -v
    -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden,-O2 -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include)
if(MAR_WERROR)
  list(APPEND MAR_CUDA_FLAGS -Werror all-warnings)
endif()
if(NOT MAR_CUDA_ARCHITECTURES MATCHES "virtual")
  message(STATUS "No PTX: this build runs on GPUs of ${MAR_CUDA_ARCHITECTURES} only")
endif()
if(MAR_CUDA_ARCHITECTURES MATCHES "90a") # kernels/cuda/hopper.h
  list(APPEND MAR_CUDA_FLAGS -DMAR_CUDA_90A)
endif()
foreach(architecture ${MAR_CUDA_ARCHITECTURES})
  if(NOT architecture MATCHES "^[0-9]+[af]?(-real|-virtual)?$") # CMake's variable can be a name, too: native, all
    unset(MAR_CUDA_ARCHITECTURES CACHE) # so that another $CUDAARCHS is looked at
    message(FATAL_ERROR "CUDA architecture ${architecture}: expected a number such as 90a, 80-real or 90-virtual")
  endif()
  string(REGEX REPLACE "-real$" "" architecture ${architecture})
  if(architecture MATCHES "^(.*)-virtual$")
    list(APPEND MAR_CUDA_FLAGS -gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
  else()
    set(virtual ${architecture})
    if(architecture MATCHES "^8[0-9]$")
      set(virtual 80)
    endif()
    list(APPEND MAR_CUDA_FLAGS -gencode arch=compute_${virtual},code=sm_${architecture})
  endif()
endforeach()

function(mar_cuda_objects out)
  set(objects)
  foreach(source ${ARGN})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${source} VERBATIM COMMENT "nvcc ${name}"
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/logged.sh ${object}.log
              ${MAR_NVCC} ${MAR_CUDA_FLAGS} -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object})
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
