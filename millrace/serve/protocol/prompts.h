// Prompts in the bodies of requests.
#pragma once

#include <string_view>
#include <vector>

#include "millrace/serve/protocol/body_reader.h"
#include "millrace/serve/protocol/request.h"

namespace millrace::serve {

/// Reads a member that is a string, a list of token ids, or a list of at most `most` of these.
void ReadPrompts(BodyReader& reader, std::string_view key, int most, std::vector<Prompt>& prompts);

}  // namespace millrace::serve
