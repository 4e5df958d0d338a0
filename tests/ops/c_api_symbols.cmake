#Compares the functions that HEADER declares with the symbols that LIBRARY exports.
execute_process(COMMAND ${NM} - D-- defined -
                only ${LIBRARY} OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[^\n]+" lines "${table}") set(exported "")
        foreach (line ${lines}) if (line MATCHES " T (rlk_[a-z0-9_]+)@@RLK_0$")
            list(APPEND exported ${CMAKE_MATCH_1}) elseif(NOT line MATCHES " A RLK_0$")
                message(SEND_ERROR "exported: ${line}") endif() endforeach()

                    file(READ ${HEADER} header) string(REGEX MATCHALL
                                                       "RLK_API [^(]*\\(" declarations "${header}")
                        set(declared "") foreach (declaration ${declarations})
                            string(REGEX MATCH "rlk_[a-z0-9_]+\\($" name "${declaration}")
                                string(REPLACE
                                       "("
                                       "" name "${name}") list(APPEND declared ${name}) endforeach()

                                    list(SORT declared) list(SORT exported)
                                        list(LENGTH declared count) if (count EQUAL 0 OR NOT
                                                                        "${declared}" STREQUAL
                                                                        "${exported}")
                                            message(FATAL_ERROR
                                                    "declared: ${declared}\nexported: ${exported}")
                                                endif() message(STATUS "${count} functions")
