#include "millrace/tokenizer/vocabulary/encode_workspace.h"

#include <utility>

namespace millrace::tokenizer {

std::unique_ptr<EncodeWorkspace> WorkspacePool::Take() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      auto workspace = std::move(free_.back());
      free_.pop_back();
      return workspace;
    }
  }
  return std::make_unique<EncodeWorkspace>();
}

void WorkspacePool::Return(std::unique_ptr<EncodeWorkspace> workspace) {
  // Memory for one long text is kept in at most one workspace, and only up to kHuge (some 50 MB). Both are guesses.
  constexpr std::size_t kLarge = 1u << 18, kHuge = 1u << 20;  // symbols
  MutexLock lock(mutex_);
  std::size_t largest = free_.empty() ? kHuge : kLarge;
  if (workspace->symbols.capacity() > largest) {
    workspace->symbols = {};
    workspace->merger = {};
  }
  if (workspace->path.capacity() > largest) workspace->path = {};
  if (workspace->text.capacity() > 4 * largest) workspace->text = {};
  if (free_.size() < kMaxKept) free_.push_back(std::move(workspace));
}

}  // namespace millrace::tokenizer
