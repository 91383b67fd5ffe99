// Collective operations built of messages between pairs of ranks, for networks that offer nothing else.
#pragma once

#include <memory>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/collectives/collective.h"

namespace millrace::collectives {

/// Messages between pairs of ranks. Messages from one rank to another arrive in the order in which they were started. A
/// message has the size that its receiver expects: the operations below see to that. One thread at a time.
class PeerLink {
 public:
  /// A message under way. Wait() blocks until the bytes may be changed (a send) or read (a receive). After the
  /// destructor, nothing reads or writes them.
  class Transfer {
   public:
    virtual ~Transfer() = default;
    virtual Status Wait() = 0;
  };
  virtual ~PeerLink() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int NameOf(int peer) const { return peer; }  ///< for errors: its rank in the job
  virtual Result<std::unique_ptr<Transfer>> StartSend(ByteSpan bytes, int to) = 0;
  virtual Result<std::unique_ptr<Transfer>> StartReceive(MutableByteSpan into, int from) = 0;
};

// In each operation the ranks first compare what they have started; then each rank sends every other rank directly what
// that rank needs. A rank that reduces has all addends at once, so that it adds them in the order of ranks and rounds
// once, which a ring cannot do. Bytes that each of n ranks sends, beside labels of 24 bytes, for elements of B bytes:
// all-gather and reduce-scatter (n-1)/n · B, all-reduce 2 · (n-1)/n · B. Broadcast: the root at most 2 · B for more
// than two ranks, the others at most B.
//
// Blocks until the operation is done on this rank. The elements match the operation, as for Transport.
// Errors: kInvalidArgument if the ranks have started different operations; those of the link.
Status DirectAllReduce(PeerLink& link, const Elements& elements, Reduction reduction);
Status DirectAllGather(PeerLink& link, const Elements& all, const Elements& mine);
Status DirectReduceScatter(PeerLink& link, const Elements& mine, const Elements& all, Reduction reduction);
Status DirectBroadcast(PeerLink& link, const Elements& elements, int root);
/// One message from one rank to another, with a label before it.
Status DirectSend(PeerLink& link, const Elements& elements, int to);
Status DirectReceive(PeerLink& link, const Elements& elements, int from);

}  // namespace millrace::collectives
