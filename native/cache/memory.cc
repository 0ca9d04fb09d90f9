// What a cache takes: of its pool, by what it is for, and beside it.
#include "layer.h"

namespace palimpsest {

size_t Scratch::bytes() const {
  return query.bytes() + sides.capacity() * sizeof(SideView) + keyRows.bytes() + valueRows.bytes() + lines.bytes() + results.bytes() + base.bytes() + codes.bytes() + space.bytes() +
         latent.bytes() + latentTiles.bytes();
}

size_t Workers::bytes() const {
  size_t total = partial.bytes() + delta.bytes() + mass.bytes() + skipped.bytes() + mover.bytes();
  for (const Scratch& one : scratch) total += one.bytes();
  return total;
}

size_t KeptQueries::bytes() const {
  return (q.capacity() + output.capacity()) * sizeof(uint16_t) + (lse.capacity() + norm.size()) * sizeof(float) + position.size() * sizeof(int);
}

size_t Layer::latentBytes() const { return latent ? latent->bytes() : 0; }

size_t Layer::sketchBytes() const { return sketch ? sketch->size() * sizeof(uint16_t) : 0; }

CacheMemory Cache::memory() const {
  CacheMemory memory{0, 0, 0, workers_->bytes() + latents_->bytes() + fresh_.halves.bytes()};
  for (const auto& move : moves_) memory.scratch += move->added;
  for (const Layer& layer : layers_) {
    memory.open += layer.open.bytes();
    memory.sinks += layer.sinks.size();
    for (const std::shared_ptr<Page>& page : layer.pages) {
      memory.pages += page->bytes();
      memory.scratch += page->body->tried[0].bytes() + page->body->tried[1].bytes();
    }
    memory.scratch += layer.kept->bytes() + layer.latentBytes() + layer.sketchBytes();
  }
  return memory;
}

size_t Cache::besideBytes() const {
  // Only a cache and its forks hold latents_, so their number is that of those who share what belongs to them.
  size_t own = fresh_.halves.bytes(), shared = latents_->bytes();
  for (const Layer& layer : layers_) {
    own += layer.kept->bytes();
    if (layer.sketch) own += layer.sketchBytes() / static_cast<size_t>(layer.sketch.use_count());
    shared += layer.latentBytes();
  }
  return own + shared / static_cast<size_t>(latents_.use_count()) + workers_->bytes() / static_cast<size_t>(workers_.use_count());
}

}  // namespace palimpsest
