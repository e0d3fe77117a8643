module Weaving
  # A loom has a width and a pattern.
  class Loom
    attr_reader :width

    def initialize(width)
      @width = width
    end

    def self.narrow
      new(30)
    end

    def weave?(thread)
      if thread.nil?
        false
      else
        true
      end
    end
  end
end

puts Weaving::Loom.narrow.width
