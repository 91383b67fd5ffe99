#include "millrace/collectives/presence.h"

#include <cerrno>

namespace millrace::collectives {

void SharedPresence::Initialize() {
  pthread_mutexattr_t attributes;
  ::pthread_mutexattr_init(&attributes);
  ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&mutex_, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  announced_.store(State::kExpected, std::memory_order_relaxed);
}

SharedPresence::State SharedPresence::Look() {
  const State announced = announced_.load(std::memory_order_acquire);
  if (announced != State::kPresent) return announced;
  const int locked = ::pthread_mutex_trylock(&mutex_);
  if (locked == EBUSY) return State::kPresent;
  // A dead owner's mutex that is unlocked as it is stays useless, so that every rank sees the death.
  if (locked == 0 || locked == EOWNERDEAD) ::pthread_mutex_unlock(&mutex_);
  return locked == 0 ? State::kLeft : State::kDead;
}

PresenceHolder::PresenceHolder(SharedPresence& presence) : thread_([this, &presence] { Hold(presence); }) {
  MutexLock lock(mutex_);
  while (!held_) changed_.Wait(mutex_);
}

PresenceHolder::~PresenceHolder() {
  {
    MutexLock lock(mutex_);
    leaving_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void PresenceHolder::Hold(SharedPresence& presence) {
  ::pthread_setname_np(::pthread_self(), "rank-presence");
  ::pthread_mutex_lock(&presence.mutex_);
  presence.announced_.store(SharedPresence::State::kPresent, std::memory_order_release);
  {
    MutexLock lock(mutex_);
    held_ = true;
    changed_.NotifyAll();
    while (!leaving_) changed_.Wait(mutex_);
  }
  presence.announced_.store(SharedPresence::State::kLeft, std::memory_order_release);
  ::pthread_mutex_unlock(&presence.mutex_);
}

}  // namespace millrace::collectives
