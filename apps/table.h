// Rows of text in aligned columns that are Markdown too.
#pragma once

#include <string>
#include <vector>

namespace zipage::apps {

// rows: the first is the heading, all are equally long. Columns from `first_number` on are aligned to the right.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows, size_t first_number);

}  // namespace zipage::apps
