# `cpack` in a build folder makes a tarball of the installed tree and, on Debian, the packages libmar0, libmar-dev and mar.
# Debian wants the library in another folder than /usr/lib, and its own documents: the components debian-*, which nothing
# else installs. `file` and dpkg-dev find the packages' dependencies (package_packages in scripts/packages.sh).
set(triplet ${CMAKE_LIBRARY_ARCHITECTURE})
find_program(MAR_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(MAR_SHLIBDEPS)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME libmar)
set(CPACK_PACKAGE_VENDOR "the libmar authors")
set(CPACK_PACKAGE_CONTACT "libmar authors <libmar@packages.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
string(TOLOWER "libmar-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_PACKAGE_FILE_NAME)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/debian/cpack.cmake)

# dpkg-shlibdeps knows the packages of this system only, and the CUDA toolkit is in none of them.
if(MAR_SHLIBDEPS AND triplet AND NOT CMAKE_CROSSCOMPILING AND NOT MAR_CUDA)
  list(PREPEND CPACK_GENERATOR DEB)
  cmake_host_system_information(RESULT system QUERY DISTRIB_ID)
  cmake_host_system_information(RESULT release QUERY DISTRIB_VERSION_ID)
  set(CPACK_DEBIAN_PACKAGE_RELEASE 1~${system}${release}) # they need the libraries of this system
  set(version ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SOURCE libmar)
  set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
  set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

  mar_install_library(lib/${triplet} debian-library debian-development EXCLUDE_FROM_ALL)
  install(FILES examples/generate.c examples/requests.c examples/threads.c examples/client.sh examples/search.py examples/CMakeLists.txt
          DESTINATION share/doc/libmar-dev/examples
          COMPONENT debian-development EXCLUDE_FROM_ALL)

  install(FILES examples/mar.service DESTINATION lib/systemd/system COMPONENT debian-command EXCLUDE_FROM_ALL)

  configure_file(cmake/debian/changelog.in install/changelog.Debian @ONLY)
  # Adds a package: its name, the components in it, section, dependencies, and description.
  function(add_debian_package name components section depends description)
    list(GET components 0 own) # has the package's documents
    install(FILES cmake/debian/copyright DESTINATION share/doc/${name} COMPONENT ${own} EXCLUDE_FROM_ALL)
    install(FILES ${PROJECT_BINARY_DIR}/install/changelog.Debian DESTINATION share/doc/${name} COMPONENT ${own}
            EXCLUDE_FROM_ALL)
    string(TOUPPER ${name} upper)
    foreach(component ${components})
      string(TOUPPER ${component} part)
      set(CPACK_COMPONENT_${part}_GROUP ${name} PARENT_SCOPE)
    endforeach()
    set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
    set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
    set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
    set(CPACK_DEBIAN_${upper}_DESCRIPTION "${description}" PARENT_SCOPE)
    list(APPEND CPACK_DEBIAN_COMPONENTS ${components})
    set(CPACK_DEBIAN_COMPONENTS ${CPACK_DEBIAN_COMPONENTS} PARENT_SCOPE)
  endfunction()
  set(about "MAR (continuous tokens, diffusion head) and LlamaGen (discrete tokens) generate
images token by token. libmar reads their official checkpoints and runs them on
the CPU.")
  add_debian_package(libmar0 "debian-library;data" libs ""
    "autoregressive image generation - shared library\n${about}\n\nThis package has the shared library, and small demo models of handwritten
digits.")
  add_debian_package(libmar-dev debian-development libdevel "libmar0 (= ${version}), zlib1g-dev, libpcre2-dev, libutf8proc-dev"
    "autoregressive image generation - development files\n${about}\n\nThis package has the header, the static library, files for pkg-config and
CMake, and examples.")
  add_debian_package(mar "debian-command;mar" graphics "libmar0 (= ${version})"
    "autoregressive image generation - command\n${about}\n\nThis package has the command: it generates images, evaluates them (FID,
Inception score, precision and recall), inspects, converts and measures
models, and serves images over HTTP, with a unit for systemd that is not
enabled.")
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_LIBMAR-DEV_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
  set(CPACK_DEBIAN_LIBMAR0_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
  set(CPACK_DEBIAN_MAR_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/postinst ${PROJECT_SOURCE_DIR}/cmake/debian/prerm
      ${PROJECT_SOURCE_DIR}/cmake/debian/postrm)
  set(CPACK_DEBIAN_FOLDER ${PROJECT_SOURCE_DIR}/cmake/debian)
endif()
include(CPack)
