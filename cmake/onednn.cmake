# oneDNN (2.x in Debian 12: libdnnl-dev; 3.x elsewhere) as the target DNNL::dnnl. Its own CMake package, built with a
# GPU runtime, asks for the OpenCL development files, which nothing here uses: look for header and library instead.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h)
find_library(DNNL_LIBRARY dnnl)
if(NOT DNNL_INCLUDE_DIR OR NOT DNNL_LIBRARY)
  message(FATAL_ERROR "oneDNN not found: expected oneapi/dnnl/dnnl.h and libdnnl (Debian: libdnnl-dev); "
                      "-DCMAKE_PREFIX_PATH=DIR if it is elsewhere")
endif()
mark_as_advanced(DNNL_INCLUDE_DIR DNNL_LIBRARY)
if(NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
