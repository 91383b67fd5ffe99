// Decides whether a copy is needed: does the destination have the source's content already?
#pragma once

#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// An object, or a local file, to compare with another. Borrows the store.
struct ComparedItem {
  object::ReadStore* store = nullptr;
  bool local = false;  ///< a local file: its path is "/" + info.key
  object::ObjectInfo info;
};

/// Conditions under which an existing destination is overwritten. One that holds is enough. Without any condition it is
/// always overwritten.
struct CopyWhen {
  bool newer = false;         ///< the source was modified later, by whole seconds
  bool size_differs = false;  ///< the sizes differ
  bool checksum = false;      ///< the contents differ
  bool conditional() const { return newer || size_differs || checksum; }
};
/// Returns whether `source` is to be copied over `destination`. Blocks on requests and file reads for a checksum.
Result<bool> NeedsCopy(const ComparedItem& source, const ComparedItem& destination, const CopyWhen& when,
                       const object::Call& call);

/// Returns whether sizes and checksums are equal. Compares a store's checksum (requested if the listing has none) with
/// that of a file's bytes or of another object. Two objects with the same ETag are equal. Items whose checksums cannot
/// be compared count as different. Blocks.
Result<bool> SameContent(const ComparedItem& a, const ComparedItem& b, const object::Call& call);

}  // namespace millrace::transfer
