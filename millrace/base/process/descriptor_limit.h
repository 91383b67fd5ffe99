// The limit of files and sockets that this process may have open.
#pragma once

namespace millrace {

/// Raises the limit of open descriptors as far as this process may. The usual 1,024 are fewer than the files of a busy
/// mount, or than the ranks of a large job. Children inherit it: those that use select(2) do not work with more.
void RaiseDescriptorLimit();

}  // namespace millrace
