// Passes a text from one rank to all.
#pragma once

#include <string>

#include "millrace/base/result.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::train {

/// Returns the text of rank `root`. All ranks call it; those of others are ignored. Blocks.
/// Errors: those of Collective.
Result<std::string> ShareText(engine::Collective& group, std::string text, int root);

}  // namespace millrace::train
