CREATE TABLE "kept" (
	"kind" text NOT NULL,
	"key" text NOT NULL,
	"kept_ms" bigint NOT NULL,
	"bytes" bigint NOT NULL,
	"digest" text NOT NULL,
	CONSTRAINT "kept_kind_key_pk" PRIMARY KEY("kind","key")
);
--> statement-breakpoint
CREATE TABLE "kept_chunks" (
	"kind" text NOT NULL,
	"key" text NOT NULL,
	"place" integer NOT NULL,
	"bytes" "bytea" NOT NULL,
	CONSTRAINT "kept_chunks_kind_key_place_pk" PRIMARY KEY("kind","key","place")
);
--> statement-breakpoint
CREATE INDEX "kept_by_time" ON "kept" USING btree ("kept_ms");