// Is what is at the destination already what would be copied there?
#pragma once

#include "millrace/object/store.h"

namespace millrace::transfer {

/// One of two things to compare.
struct Version {
  object::Store* store = nullptr;
  bool local = false;  ///< a file, "/" + info.key
  object::ObjectInfo info;
};

/// When to copy over something that is there. Of several conditions one is enough to copy; without any, always.
struct CopyWhen {
  bool newer = false;         ///< the source was modified later, by whole seconds
  bool size_differs = false;  ///< the sizes differ
  bool checksum = false;      ///< the contents differ
  bool conditional() const { return newer || size_differs || checksum; }
};
Result<bool> NeedsCopy(const Version& source, const Version& destination, const CopyWhen& when,
                       const object::Call& call);

/// Equal sizes and equal checksums, as far as there are any that can be compared: what the store has (asked for where a
/// listing did not tell it) against what a file's bytes have, or two of the store's, or two equal ETags. Two that
/// cannot be compared count as different.
Result<bool> SameContent(const Version& a, const Version& b, const object::Call& call);

}  // namespace millrace::transfer
