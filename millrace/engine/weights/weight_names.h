// The names that weights have in files.
#pragma once

#include <optional>
#include <string>

#include "millrace/checkpoint/format/manifest.h"

namespace millrace::engine {

/// Returns the name under which an adapter's checkpoint or folder has a weight; nothing if it has none.
std::optional<std::string> FindAdapterWeight(const checkpoint::Manifest& manifest, const std::string& name);

}  // namespace millrace::engine
