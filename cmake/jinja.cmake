add_library(zipage_jinja INTERFACE)
