// The texts that tell the turns of a conversation apart where it is written as one text.
#pragma once

#include <string>

namespace millrace::data {

/// What begins the turns, as in trl's DataCollatorForCompletionOnlyLM.
struct TurnMarkers {
  std::string instruction;  ///< empty: only the text behind the last `response` is trained
  std::string response;
};

}  // namespace millrace::data
