# `cmake --install BUILD --prefix DIR` installs the components library, development, data, licences and mar (tools/). A moved
# tree works: the library finds its data, CMake's and pkg-config's files find the prefix, from their own places.
# `--component python` makes the folder of the Python package: its modules, libmar.so, and share/libmar.
include(CMakePackageConfigHelpers)

file(GLOB demo_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/weights/demo/*.safetensors)
install(FILES ${demo_files} DESTINATION ${CMAKE_INSTALL_DATADIR}/libmar/demo COMPONENT data)
foreach(folder t5 mgpt harmon nextstep nextstep/vae)
  file(GLOB folder_files LIST_DIRECTORIES false CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/weights/demo/${folder}/*)
  install(FILES ${folder_files} DESTINATION ${CMAKE_INSTALL_DATADIR}/libmar/demo/${folder} COMPONENT data)
  install(FILES ${folder_files} DESTINATION share/libmar/demo/${folder} COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT licences)
install(FILES ${PROJECT_SOURCE_DIR}/weights/demo/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME demo-models.md
        COMPONENT licences)

install(FILES $<TARGET_FILE:mar> DESTINATION . RENAME libmar.so COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${demo_files} ${PROJECT_SOURCE_DIR}/weights/demo/README.md DESTINATION share/libmar/demo COMPONENT python
        EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/tools/generate/imagenet_classes.txt
        DESTINATION share/libmar COMPONENT python EXCLUDE_FROM_ALL)
file(GLOB python_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/mar/*)
list(FILTER python_files EXCLUDE REGEX "__pycache__")
install(FILES ${python_files} DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)

list(TRANSFORM MAR_STATIC_LIBRARIES REPLACE "^([^/].*)$" "-l\\1" OUTPUT_VARIABLE MAR_PC_LIBRARIES)
list(JOIN MAR_PC_LIBRARIES " " MAR_PC_LIBRARIES)

# mar_install_library(LIBDIR LIBRARY DEVELOPMENT [EXCLUDE_FROM_ALL]): installs the shared library below LIBDIR as the
# component LIBRARY, and what programs are built with as the component DEVELOPMENT.
function(mar_install_library libdir library development)
  set(CMAKE_INSTALL_LIBDIR ${libdir}) # for the .pc file
  set(cmake_dir ${libdir}/cmake/libmar)
  set(made ${PROJECT_BINARY_DIR}/install/${libdir})
  set(export ${development}-targets)
  install(TARGETS mar mar_static EXPORT ${export}
          LIBRARY DESTINATION ${libdir} COMPONENT ${library} NAMELINK_COMPONENT ${development} ${ARGN}
          ARCHIVE DESTINATION ${libdir} COMPONENT ${development} ${ARGN}
          PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${development} ${ARGN})
  install(EXPORT ${export} FILE libmar-targets.cmake NAMESPACE libmar:: DESTINATION ${cmake_dir} COMPONENT ${development}
          ${ARGN})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/libmar-config.cmake.in ${made}/libmar-config.cmake
                                INSTALL_DESTINATION ${cmake_dir})
  write_basic_package_version_file(${made}/libmar-config-version.cmake COMPATIBILITY SameMajorVersion)
  install(FILES ${made}/libmar-config.cmake ${made}/libmar-config-version.cmake DESTINATION ${cmake_dir}
          COMPONENT ${development} ${ARGN})
  file(RELATIVE_PATH MAR_PC_PREFIX /prefix/${libdir}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" MAR_PC_PREFIX ${MAR_PC_PREFIX})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/libmar.pc.in ${made}/libmar.pc @ONLY)
  install(FILES ${made}/libmar.pc DESTINATION ${libdir}/pkgconfig COMPONENT ${development} ${ARGN})
endfunction()
mar_install_library(${CMAKE_INSTALL_LIBDIR} library development)
