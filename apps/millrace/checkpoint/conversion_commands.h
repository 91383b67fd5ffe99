// The commands that turn checkpoints into other programs' files and back.
#pragma once

#include <memory>

#include "apps/millrace/checkpoint/action.h"

namespace millrace::cli::ckpt {

/// Adds `ckpt export`, `ckpt merge` and `ckpt import`.
void AddConversions(CLI::App& ckpt, Context& context, const std::shared_ptr<Arguments>& arguments);

}  // namespace millrace::cli::ckpt
