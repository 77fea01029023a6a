# Run by cpack before it packs.
# Debian has manuals and changes compressed, without the time of the build.
file(GLOB_RECURSE files ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/man?/*.? ${CPACK_TEMPORARY_DIRECTORY}/*/changelog.Debian)
execute_process(COMMAND gzip -9n ${files} COMMAND_ERROR_IS_FATAL ANY)
# Debian's zsh looks for completions of packages in a folder of its own.
file(GLOB folders ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/zsh)
foreach(folder ${folders})
  file(RENAME ${folder}/site-functions ${folder}/vendor-completions)
endforeach()
