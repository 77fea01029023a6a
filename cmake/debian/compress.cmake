# Run by cpack before it packs: Debian has manuals and changes compressed, without the time of the build.
file(GLOB_RECURSE files ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/man?/*.? ${CPACK_TEMPORARY_DIRECTORY}/*/changelog.Debian)
execute_process(COMMAND gzip -9n ${files} COMMAND_ERROR_IS_FATAL ANY)
