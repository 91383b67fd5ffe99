// The texts that separate the turns of a conversation that is written as one text.
#pragma once

#include <string>

namespace millrace::data {

/// The texts that begin the turns, as in trl's DataCollatorForCompletionOnlyLM.
struct TurnMarkers {
  std::string instruction;  ///< empty: only the text behind the last `response` is trained
  std::string response;
};

}  // namespace millrace::data
