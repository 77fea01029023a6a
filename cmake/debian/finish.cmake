# Run by cpack with the finished packages. What CPack 3.25 cannot do for libraries: ldconfig runs by a trigger instead of
# scripts of the package, and packages of several architectures can be installed beside each other.
foreach(package ${CPACK_PACKAGE_FILES})
  if(NOT package MATCHES "/libmar[^/]*[.]deb$")
    continue()
  endif()
  set(folder ${package}.unpacked)
  file(REMOVE_RECURSE ${folder})
  execute_process(COMMAND dpkg-deb -R ${package} ${folder} COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE ${folder}/DEBIAN/postinst ${folder}/DEBIAN/postrm)
  file(READ ${folder}/DEBIAN/control control)
  string(REPLACE "\nArchitecture:" "\nMulti-Arch: same\nArchitecture:" control "${control}")
  file(WRITE ${folder}/DEBIAN/control "${control}")
  execute_process(COMMAND dpkg-deb --root-owner-group -Zxz -b ${folder} ${package} COMMAND_ERROR_IS_FATAL ANY
                  OUTPUT_QUIET)
  file(REMOVE_RECURSE ${folder})
endforeach()
