{# What dbt needs on a lake that DuckDB has attached with the Airport extension. Copy this file into your project. #}

{% macro attach_lake() %}
  {# DuckDB lists a lake once. Attaching it again shows the tables and views that this run has created to all threads. #}
  {% for each in target.attach if each.type == 'airport' %}
    attach or replace '{{ each.path }}' as {{ each.alias }} (type airport {{- ', secret ' ~ each.secret if each.secret }});
  {% endfor %}
{% endmacro %}

{% macro name_in_lake(relation) %}{{ dbt.string_literal(relation.include(database=false).render()) }}{% endmacro %}

{% macro in_dollars(sql) %}$skiway${{ sql }}$skiway${% endmacro %}


{# -- views: the client has no CREATE VIEW and shows views as tables ------------------------------------------------- #}

{% materialization view, adapter='duckdb' %}
  {% set existing, view = load_cached_relation(this), this.incorporate(type='view') %}
  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% if existing is not none and not existing.is_view %}
    {% do adapter.drop_relation(existing) %}
  {% endif %}
  {% call statement('main') %}{{ get_create_view_as_sql(view, sql) }}{% endcall %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {% do adapter.commit() %}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [view]}) }}
{% endmaterialization %}

{% macro duckdb__create_view_as(relation, sql) %}
  {% if config.get('contract').enforced %}{{ get_assert_columns_equivalent(sql) }}{% endif %}
  call {{ relation.database }}.skiway.create_view({{ name_in_lake(relation) }}, {{ in_dollars(sql) }}, replace => true,
    comment => {{ in_dollars(model.description) }});
{% endmacro %}

{% macro duckdb__list_schemas(database) %}
  {# dbt-duckdb looks for the name in quotes, does not find it, and relies on IF NOT EXISTS, which the client does not send. #}
  {{ return(dbt.duckdb__list_schemas(database | replace('"', ''))) }}
{% endmacro %}

{% macro duckdb__list_relations_without_caching(schema_relation) %}
  {% call statement('list_relations_without_caching', fetch_result=True) %}
    select '{{ schema_relation.database }}' as database, name, schema_name as schema, type from (
      select schema_name, table_name as name, 'table' as type from {{ schema_relation.database }}.skiway.tables
      union all
      select schema_name, view_name, 'view' from {{ schema_relation.database }}.skiway.views
    ) where lower(schema_name) = lower('{{ schema_relation.schema }}')
  {% endcall %}
  {{ return(load_result('list_relations_without_caching').table) }}
{% endmacro %}

{% macro duckdb__drop_relation(relation) %}
  {% call statement('drop_relation', auto_begin=False) %}
    {% if relation.is_view %}
      call {{ relation.database }}.skiway.drop_view({{ name_in_lake(relation) }}, if_exists => true)
    {% elif relation.database %}
      {{ attach_lake() }} drop table if exists {{ relation }}
    {% else %}
      drop table if exists {{ relation }}
    {% endif %}
  {% endcall %}
{% endmacro %}

{% macro duckdb__rename_relation(from_relation, to_relation) %}
  {# dbt replaces a table by renaming the old and the new one. That would be another table, without the history, the grants and
     the policies of the old one. If the columns are the same, the table stays, and one commit replaces its rows. #}
  {% set is_backup = to_relation.identifier.endswith('__dbt_backup') %}
  {% set new_columns = [] if is_backup else adapter.get_columns_in_relation(from_relation) %}
  {% set old_columns = [] if is_backup else adapter.get_columns_in_relation(to_relation) %}
  {% call statement('rename_relation') %}
    {% if is_backup and from_relation.is_view %}
      call {{ from_relation.database }}.skiway.drop_view({{ name_in_lake(from_relation) }})
    {% elif is_backup %}
      select 'it is replaced below'
    {% elif new_columns | map(attribute='data_type') | list == old_columns | map(attribute='data_type') | list
        and new_columns | map(attribute='name') | list == old_columns | map(attribute='name') | list %}
      call {{ to_relation.database }}.skiway.merge({{ name_in_lake(to_relation) }}, {{ in_dollars('from ' ~ from_relation) }}, 'false',
        clauses => 'when not matched then insert by name when not matched by source then delete');
      drop table {{ from_relation }}
    {% else %}
      drop table if exists {{ to_relation }};
      alter table {{ from_relation }} rename to {{ adapter.quote(to_relation.identifier) }}
    {% endif %}
  {% endcall %}
{% endmacro %}


{# -- one commit for each change, because the client does not send ROLLBACK ------------------------------------------- #}

{% macro duckdb__create_table_as(temporary, relation, compiled_code, language='sql', partitioned_by=none, sorted_by=none) %}
  {# A new model gets its name once it has all rows: the next run would take a part of them for the whole table. #}
  {% set complete = temporary or relation.identifier != this.identifier %}
  {% set made = relation if complete else make_intermediate_relation(relation) %}
  {% if not complete %}drop table if exists {{ made }};{% endif %}
  {{ dbt.duckdb__create_table_as(temporary, made, compiled_code, language, partitioned_by, sorted_by) }}
  {% if not complete %}alter table {{ made }} rename to {{ adapter.quote(relation.identifier) }};{% endif %}
{% endmacro %}

{% macro merge_in_lake(target, source, condition, clauses) %}
  {# The server runs the MERGE, so it needs the rows of `source`, which is a temporary table of the client. #}
  {% set rows = make_intermediate_relation(target, '__dbt_rows') %}
  drop table if exists {{ rows }};
  create table {{ rows }} as from {{ source }};
  call {{ target.database }}.skiway.merge({{ name_in_lake(target) }}, {{ in_dollars('from ' ~ rows) }},
    {{ in_dollars(condition) }}, clauses => {{ in_dollars(clauses) }});
  drop table {{ rows }};
{% endmacro %}

{% macro duckdb__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates=none) %}
  {% set merge = dbt.duckdb__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates)
      | replace('DBT_INTERNAL_DEST', 'target') | replace('DBT_INTERNAL_SOURCE', 'source') %}
  {% set parts = modules.re.match('(?s).*? AS source\\s+ON (.*?)\\s(WHEN .*)', merge) %}
  {% if not parts %}{% do exceptions.raise_compiler_error('a MERGE in the lake needs a unique_key') %}{% endif %}
  {{ merge_in_lake(target, source, parts[1], parts[2]) }}
{% endmacro %}

{% macro duckdb__snapshot_merge_sql(target, source, insert_cols) %}
  {% set columns = config.get('snapshot_table_column_names') or get_snapshot_table_column_names() %}
  {% set names = insert_cols | join(', ') %}
  {% set values = 'source.' ~ insert_cols | join(', source.') %}
  {% set valid_to, current = columns.dbt_valid_to, config.get('dbt_valid_to_current') %}
  {{ merge_in_lake(target, source, 'target.' ~ columns.dbt_scd_id ~ ' = source.' ~ columns.dbt_scd_id,
    "when matched and (target." ~ valid_to ~ " is null" ~ (" or target." ~ valid_to ~ " = " ~ current if current else "")
    ~ ") and source.dbt_change_type in ('update', 'delete') then update set " ~ valid_to ~ " = source." ~ valid_to
    ~ " when not matched and source.dbt_change_type = 'insert' then insert (" ~ names ~ ") values (" ~ values ~ ")") }}
{% endmacro %}
