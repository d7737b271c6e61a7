// What a thread is for, said to the system.
//
// Thread-safety: each call is about the calling thread.
#pragma once

namespace zipage {

// The name that top, perf and debuggers show; at most 15 characters.
void name_thread(const char* name);

// For threads whose work comes in short bursts beside a pool that has every core: waking up, such a thread waits until
// a core's thread gives way or its time is up, where it would else put it aside in the middle of its work, and all
// others of the pool would wait for it at their next barrier (SCHED_BATCH). Threads that it starts begin the same way.
// Does nothing where the system does not let it.
void wake_without_preempting();

}  // namespace zipage
